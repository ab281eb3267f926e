"""What users hand in: arguments, arrays, kinds of matrices, options, and the sizes that they
have.
"""
