"""Models, data, trainers and fakes that several tests share.

pytest and `support.processes` put the folder of this package on the path.
"""
