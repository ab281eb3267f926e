"""What knows nothing of attention: files, JSON and tables, sizes as people write them,
processes, how a program ends.
"""
