"""Files that clusterctl keeps on the controller: paths, locks, runs, snapshots, history."""
