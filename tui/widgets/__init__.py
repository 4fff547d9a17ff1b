"""What screens are made of. A widget draws what it is given and remembers only cursor and sort."""
