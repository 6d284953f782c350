// Every file of a bank with xtensor's reader, from Debian's libxtensor-dev.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <xtensor/xarray.hpp>
#include <xtensor/xnpy.hpp>

namespace fs = std::filesystem;

template <typename T>
void report(const fs::path& path, const std::string& dtype, const std::string& name, const fs::path& out) {
    xt::xarray<T> a = xt::load_npy<T>(path.string());
    std::string shape;
    for (auto n : a.shape()) shape += (shape.empty() ? "" : "x") + std::to_string(n);
    double total = 0;
    for (T value : a) total += static_cast<double>(value);
    printf("%s %s %s %.17g\n", name.c_str(), dtype.c_str(), shape.c_str(), total);
    std::ofstream(out, std::ios::binary).write(reinterpret_cast<const char*>(a.data()), a.size() * sizeof(T));
}

int main(int argc, char** argv) {
    for (int i = 3; i < argc; i++) {
        fs::create_directories(fs::path(argv[2]) / argv[i]);
        for (auto& file : fs::directory_iterator(fs::path(argv[1]) / argv[i])) {
            const fs::path& path = file.path();
            if (path.extension() != ".npy") continue;
            std::string header(128, ' ');  // xtensor wants the type to be known: it is the first thing that the header says
            std::ifstream(path, std::ios::binary).read(header.data(), header.size());
            std::string dtype = header.substr(header.find("'descr': '") + 10, 3);
            std::string name = std::string(argv[i]) + "/" + path.filename().string();
            fs::path out = fs::path(argv[2]) / argv[i] / path.stem();
            if (dtype == "|i1") report<int8_t>(path, dtype, name, out);
            else if (dtype == "<i2") report<int16_t>(path, dtype, name, out);
            else if (dtype == "<i4") report<int32_t>(path, dtype, name, out);
            else if (dtype == "<i8") report<int64_t>(path, dtype, name, out);
            else if (dtype == "<f4") report<float>(path, dtype, name, out);
            else if (dtype == "<f8") report<double>(path, dtype, name, out);
            else throw std::runtime_error("no type " + dtype);
        }
    }
}
