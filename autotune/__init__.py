"""An auto-tuning advisor for Hugging Face Trainer and Accelerate."""
