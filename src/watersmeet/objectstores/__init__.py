"""Object stores, and HDFS: what a store is, the stores that there are, and the files of databases in them."""
