"""``relay demo``: runs a workload on embedded services, and compares everything with what the workload wrote."""
