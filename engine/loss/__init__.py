"""Loss: how a batch becomes a loss, and how losses are summed until they are logged."""
