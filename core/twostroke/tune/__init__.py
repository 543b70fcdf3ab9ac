"""Finding out where each stroke runs best on this machine, and writing it into the YAML.

`variants` says what could be tried, `opened` loads it, `rounds` measures it in turns, `pairs` puts
prefill and decode together and ranks them, `edits` and `yaml_file` change the YAML.
"""

from twostroke.tune.run import Candidates, Standing, Tuned, candidates, tune
from twostroke.tune.settings import TuneSettings, Workload

__all__ = ["Candidates", "Standing", "TuneSettings", "Tuned", "Workload", "candidates", "tune"]
