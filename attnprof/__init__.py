"""attnprof: predict what an attention kernel must cost on a GPU, run it, and explain the gap."""

__version__ = "0.1.0"
