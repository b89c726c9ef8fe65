"""Lightning: callbacks that were written for Lightning run on trainbus."""
