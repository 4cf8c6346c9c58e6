# find_package(troika) inside this very build, for the programs of examples/: the targets are there already.
set(troika_FOUND TRUE)
