"""A requester's side of a job: the order, the quote, the handle, the results."""
