"""What a training costs: time by part and by callback, and what limits its speed."""
