"""Races on Hopper, a file for what is raced, for scripts/bench_hopper_cases.py: each yields its
cases.
"""
