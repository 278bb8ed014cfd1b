# What `cmake --install` puts where is set beside each target; here is what ties it together.
