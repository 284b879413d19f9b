"""Records how the process ends, what it raises and its memory."""
