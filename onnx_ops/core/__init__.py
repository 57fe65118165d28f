"""What an op is: its record, its calls and the rules they follow, types and errors."""
