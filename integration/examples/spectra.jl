# The inclusive W spectrum, and the missing mass of e p -> e' pi+ X: julia spectra.jl MOUNT
#
# Prints the two histograms: lower edge of a bin in GeV, events in W, pions in missing mass.
using Mmap, Printf

const BEAM, PROTON, PION = 10.6, 0.938272, 0.139570
const EDGES = [i * 0.05 for i in 0:100] # GeV

# The values of a .npy file of the mount, mapped.
function column(T, path)
    open(path) do f
        seek(f, 8)
        skip(f, ltoh(read(f, UInt16)))
        filesize(f) == position(f) ? T[] : Mmap.mmap(f, Vector{T}, (filesize(f) - position(f)) ÷ sizeof(T), position(f))
    end
end

function enter!(histogram, square)
    square > 0 || return
    bin = searchsortedlast(EDGES, sqrt(square))
    bin == length(EDGES) && sqrt(square) == EDGES[end] && (bin -= 1) # as NumPy has it: the last edge is in the last bin
    bin < length(EDGES) && (histogram[bin] += 1)
end

function spectra(bank)
    offsets = column(Int64, "$bank/offsets.npy")
    pid, status = column(Int32, "$bank/pid.npy"), column(Int16, "$bank/status.npy")
    px, py, pz = (Float64.(column(Float32, "$bank/$c.npy")) for c in ("px", "py", "pz"))
    energy(row, mass) = sqrt(px[row] * px[row] + py[row] * py[row] + pz[row] * pz[row] + mass * mass)
    w, mx = zeros(Int, 100), zeros(Int, 100)
    for event in 1:length(offsets)-1
        rows = offsets[event]+1:offsets[event+1] # Julia counts from 1
        # The scattered electron is the first row with pid 11 that has triggered: its status is negative.
        found = findfirst(row -> pid[row] == 11 && status[row] < 0, rows)
        found === nothing && continue
        e = rows[found]
        scattered = energy(e, 0)
        q2 = 2 * BEAM * (scattered - pz[e])
        enter!(w, PROTON * PROTON + 2 * PROTON * (BEAM - scattered) - q2)
        for row in rows
            pid[row] == 211 || continue
            x = BEAM + PROTON - scattered - energy(row, PION)
            kx, ky, kz = -px[e] - px[row], -py[e] - py[row], BEAM - pz[e] - pz[row]
            enter!(mx, x * x - kx * kx - ky * ky - kz * kz)
        end
    end
    w, mx
end

for (edge, w, mx) in zip(EDGES, spectra(joinpath(ARGS[1], "REC::Particle"))...)
    @printf("%.2f %d %d\n", edge, w, mx)
end
