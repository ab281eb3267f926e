"""What programs take besides matrices: kernel functions, clusters, block patterns of weights."""
