"""What a child measures of a training loop: time, memory, exchange, gradients, and checks of it."""
