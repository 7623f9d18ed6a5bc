"""What is asked: requests built, checked, hashed."""
