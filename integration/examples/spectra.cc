// The inclusive W spectrum, and the missing mass of e p -> e' pi+ X: spectra MOUNT
//
// Prints the two histograms: lower edge of a bin in GeV, events in W, pions in missing mass.
// c++ -std=c++17 -O2 -ffp-contract=off -o spectra spectra.cc
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

constexpr double BEAM = 10.6, PROTON = 0.938272, PION = 0.139570;
constexpr int BINS = 100;
constexpr double WIDTH = 0.05;  // GeV

// The values of a .npy file, mapped.
template <typename T>
struct Column {
    const T* values;
    size_t rows;
    const T& operator[](size_t row) const { return values[row]; }

    explicit Column(const std::string& path) {
        int fd = open(path.c_str(), O_RDONLY);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) != 0) throw std::runtime_error("cannot open " + path);
        auto* bytes = static_cast<const unsigned char*>(mmap(nullptr, st.st_size, PROT_READ, MAP_SHARED, fd, 0));
        close(fd);
        if (bytes == MAP_FAILED) throw std::runtime_error("cannot map " + path);
        size_t header = 10 + bytes[8] + 256 * bytes[9];
        values = reinterpret_cast<const T*>(bytes + header);
        rows = (st.st_size - header) / sizeof(T);
    }
};

void fill(std::vector<long>& histogram, double square) {
    if (!(square > 0)) return;
    double x = std::sqrt(square);
    int bin = static_cast<int>(std::fmin(x / WIDTH, BINS));
    if (x < bin * WIDTH) bin--;  // rounding at an edge
    else if (x >= (bin + 1) * WIDTH) bin++;
    if (bin < BINS) histogram[bin]++;
    else if (x == BINS * WIDTH) histogram[BINS - 1]++;  // as NumPy has it: the last edge is in the last bin
}

int main(int, char** argv) {
    std::string bank = std::string(argv[1]) + "/REC::Particle/";
    Column<int64_t> offsets(bank + "offsets.npy");
    Column<int32_t> pid(bank + "pid.npy");
    Column<float> px_(bank + "px.npy"), py_(bank + "py.npy"), pz_(bank + "pz.npy");
    Column<int16_t> status(bank + "status.npy");
    auto energy = [&](size_t row, double mass) {
        double px = px_[row], py = py_[row], pz = pz_[row];
        return std::sqrt(px * px + py * py + pz * pz + mass * mass);
    };
    std::vector<long> w(BINS), mx(BINS);
    for (size_t event = 0; event + 1 < offsets.rows; event++) {
        size_t begin = offsets[event], end = offsets[event + 1];
        // The scattered electron is the first row with pid 11 that has triggered: its status is negative.
        size_t e = begin;
        while (e < end && !(pid[e] == 11 && status[e] < 0)) e++;
        if (e == end) continue;
        double ex = px_[e], ey = py_[e], ez = pz_[e], scattered = energy(e, 0);
        double q2 = 2 * BEAM * (scattered - ez);
        fill(w, PROTON * PROTON + 2 * PROTON * (BEAM - scattered) - q2);
        for (size_t row = begin; row < end; row++) {
            if (pid[row] != 211) continue;
            double x = BEAM + PROTON - scattered - energy(row, PION);
            double kx = -ex - px_[row], ky = -ey - py_[row], kz = BEAM - ez - pz_[row];
            fill(mx, x * x - kx * kx - ky * ky - kz * kz);
        }
    }
    for (int bin = 0; bin < BINS; bin++) printf("%.2f %ld %ld\n", bin * WIDTH, w[bin], mx[bin]);
}
