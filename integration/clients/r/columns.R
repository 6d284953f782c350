# Every file of a bank with R alone: the header is read here. R has no 64-bit integers; they are put together as doubles.
args <- commandArgs(trailingOnly = TRUE)

npy <- function(path) {
  bytes <- readBin(path, "raw", file.size(path))
  stopifnot(identical(bytes[1:8], as.raw(c(0x93, utf8ToInt("NUMPY"), 1, 0))))
  start <- 10 + sum(as.integer(bytes[9:10]) * c(1, 256))
  header <- rawToChar(bytes[11:start])
  dtype <- sub(".*'descr': '([^']*)'.*", "\\1", header)
  shape <- as.integer(regmatches(header, gregexpr("[0-9]+(?=[0-9, ]*\\))", header, perl = TRUE))[[1]])
  content <- bytes[-(1:start)]
  size <- as.integer(substr(dtype, 3, 3))
  n <- length(content) / size
  values <- switch(dtype,
    "<f4" = , "<f8" = readBin(content, "double", n, size, endian = "little"),
    "<i8" = {
      halves <- matrix(readBin(content, "integer", 2 * n, 4, endian = "little"), nrow = 2)
      halves[is.na(halves)] <- -2^31
      halves[2, ] * 2^32 + halves[1, ] %% 2^32
    },
    readBin(content, "integer", n, size, endian = "little"))
  values[is.na(values) & !is.nan(values)] <- -2^31 # to R, the least int32 is a missing value
  list(dtype = dtype, shape = shape, values = values, content = content)
}

for (bank in args[-(1:2)]) {
  dir.create(file.path(args[2], bank), showWarnings = FALSE)
  for (name in list.files(file.path(args[1], bank), "\\.npy$")) {
    a <- npy(file.path(args[1], bank, name))
    total <- Reduce(`+`, as.double(a$values), 0)
    cat(sprintf("%s/%s %s %s %s\n", bank, name, a$dtype, paste(a$shape, collapse = "x"), format(total, digits = 17)))
    writeBin(a$content, file.path(args[2], bank, sub("\\.npy$", "", name)))
  }
}
