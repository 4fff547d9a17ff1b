"""What training code imports while it trains: local SGD for Accelerate loops and for Trainer."""
