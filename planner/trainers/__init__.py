"""What each trainer can express, how it spends memory and what it hides: data and predicates, no searching."""
