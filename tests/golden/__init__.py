"""Golden records: what flashsim computed, counted and said before its house was rebuilt, to
compare with afterwards.
"""
