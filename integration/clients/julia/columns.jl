# Every file of a bank with Julia's standard library: the header is read here, the values are mapped.
using Mmap

const TYPES = Dict("|i1" => Int8, "<i2" => Int16, "<i4" => Int32, "<i8" => Int64, "<f4" => Float32, "<f8" => Float64)

# The type, the shape and the values of a .npy file. Julia stores columns first: a file of (rows, N) is an N × rows array.
function npy(path)
    open(path) do f
        read(f, 8) == b"\x93NUMPY\x01\x00" || error("$path is not .npy")
        header = String(read(f, ltoh(read(f, UInt16))))
        dtype = match(r"'descr': '([^']*)'", header)[1]
        shape = [parse(Int, n.match) for n in eachmatch(r"\d+", match(r"'shape': \(([^)]*)\)", header)[1])]
        values = prod(shape) == 0 ? zeros(TYPES[dtype], reverse(shape)...) :
                 Mmap.mmap(f, Array{TYPES[dtype],length(shape)}, Tuple(reverse(shape)), position(f))
        dtype, shape, values
    end
end

mount, out = ARGS[1:2]
for bank in ARGS[3:end]
    mkpath(joinpath(out, bank))
    for name in filter(endswith(".npy"), readdir(joinpath(mount, bank)))
        dtype, shape, values = npy(joinpath(mount, bank, name))
        println("$bank/$name $dtype $(join(shape, "x")) ", foldl((sum, v) -> sum + Float64(v), values; init=0.0))
        write(joinpath(out, bank, name[1:end-4]), values)
    end
end
