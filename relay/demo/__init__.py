"""``relay demo``: a workload on embedded services, and the comparison of everything with what it wrote."""
