"""What a requester holds of a job: its quote, its handle, what it has trained."""
