"""What can be added to an agent; each file is one feature."""
