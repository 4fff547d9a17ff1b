"""Which devices a process can train on, as NVML, torch and the host tell of them."""
