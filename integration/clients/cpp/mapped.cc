// Every file of a bank with the standard library and mmap alone: the header is read here, the values are used where they lie.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace fs = std::filesystem;

struct Column {
    std::string dtype, shape;  // "<f4", "24" or "24x3"
    const char* content;
    size_t bytes;
};

// map maps a .npy file: "\x93NUMPY", version 1.0, the length of the header, the header, the values.
Column map(const fs::path& path) {
    int fd = open(path.c_str(), O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) throw std::runtime_error(path.string() + " cannot be opened");
    auto* whole = static_cast<const char*>(mmap(nullptr, st.st_size, PROT_READ, MAP_SHARED, fd, 0));
    close(fd);
    if (whole == MAP_FAILED || memcmp(whole, "\x93NUMPY\x01\x00", 8) != 0) throw std::runtime_error(path.string() + " is not .npy");
    size_t start = 10 + static_cast<uint8_t>(whole[8]) + 256 * static_cast<uint8_t>(whole[9]);
    std::string header(whole + 10, whole + start);
    auto descr = header.find("'descr': '") + 10;
    auto shape = header.find("'shape': (") + 10;
    Column c{header.substr(descr, header.find('\'', descr) - descr), "", whole + start, st.st_size - start};
    for (char letter : header.substr(shape, header.find(')', shape) - shape))
        if (letter == ' ') c.shape += 'x';
        else if (letter != ',') c.shape += letter;
    return c;
}

template <typename T>
double sum(const Column& c) {
    double total = 0;
    auto* values = reinterpret_cast<const T*>(c.content);  // they begin at a multiple of 64
    for (size_t i = 0; i < c.bytes / sizeof(T); i++) total += static_cast<double>(values[i]);
    return total;
}

double sum(const Column& c) {
    if (c.dtype == "|i1") return sum<int8_t>(c);
    if (c.dtype == "<i2") return sum<int16_t>(c);
    if (c.dtype == "<i4") return sum<int32_t>(c);
    if (c.dtype == "<i8") return sum<int64_t>(c);
    if (c.dtype == "<f4") return sum<float>(c);
    if (c.dtype == "<f8") return sum<double>(c);
    throw std::runtime_error("no type " + c.dtype);
}

int main(int argc, char** argv) {
    for (int i = 3; i < argc; i++) {
        fs::create_directories(fs::path(argv[2]) / argv[i]);
        for (auto& file : fs::directory_iterator(fs::path(argv[1]) / argv[i])) {
            if (file.path().extension() != ".npy") continue;
            Column c = map(file.path());
            printf("%s/%s %s %s %.17g\n", argv[i], file.path().filename().c_str(), c.dtype.c_str(), c.shape.c_str(), sum(c));
            std::ofstream(fs::path(argv[2]) / argv[i] / file.path().stem(), std::ios::binary).write(c.content, c.bytes);
        }
    }
}
