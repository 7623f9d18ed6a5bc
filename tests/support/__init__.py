"""What several test modules share: cases, oracles, values, stand-ins."""
