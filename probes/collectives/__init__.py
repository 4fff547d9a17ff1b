"""What exchanges between ranks cost, measured on the job's own kind of process group."""
