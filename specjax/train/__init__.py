"""Learning: corpus, losses and one loop for targets and drafters."""
