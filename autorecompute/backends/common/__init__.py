"""What every training system that trains with torch needs, inside the user's process."""
