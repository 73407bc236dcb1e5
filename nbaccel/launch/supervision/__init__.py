"""What happens to a group at work: results, failures, interrupts, deadlines, hangs."""
