"""The commands: each module here is one, and says so with a ``COMMAND`` record. Adding a command is adding a file."""
