"""The backends that come with twostroke, each registered like any stranger's plugin."""
