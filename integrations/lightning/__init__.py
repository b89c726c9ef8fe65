"""Run callbacks that were written for Lightning on trainbus."""
