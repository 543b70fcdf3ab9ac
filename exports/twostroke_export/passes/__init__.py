"""Graph passes: each a small file that rewrites a traced graph in place, keeping its numbers."""
