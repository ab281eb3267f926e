"""The page that plays a trace: its scripts, its style and its frame."""
