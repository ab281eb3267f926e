"""Closed forms of programs that are no attention, a file for each: `flashsim.theory.exact_program`."""
