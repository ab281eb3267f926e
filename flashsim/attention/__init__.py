"""An attention problem: its arguments, their checks, its masks and its dropout."""
