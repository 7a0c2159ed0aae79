"""The GPU: discovery, loading, launching, timing."""
