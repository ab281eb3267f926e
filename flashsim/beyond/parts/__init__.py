"""What programs take besides matrices: kernel functions, labels, clusters, block patterns of weights."""
