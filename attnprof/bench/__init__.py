"""How to time a kernel, and what to say of it."""
