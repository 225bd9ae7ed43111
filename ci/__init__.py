"""What the workflows decide: which jobs, on which machines, for how long, on whose code. YAML only calls this."""
