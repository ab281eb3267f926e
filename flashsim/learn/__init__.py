"""Lessons, exercises, worked examples, and the playground."""
