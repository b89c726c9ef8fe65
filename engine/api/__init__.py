"""The surface of the Trainer that is not training: evaluating, recording, subscribing."""
