/* What the cores can do at best: gradients of the multi-step loss for one network of the shape 2-10-10-10-2, tanh, K = 10,
   in one fused kernel without a call, a copy or a store of anything but activations. Sixteen bursts fill one vector.
   The optimiser's update is left out: it costs next to nothing. Prints the median seconds an epoch, one member.
   Build: gcc -O3 -march=native -ffast-math -fopenmp limit_kernel.c -o limit_kernel */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATE = 2, NODES = 10, STEPS = 11, LAYERS = 4, LANES = 16 };
typedef float lane __attribute__((vector_size(4 * LANES)));
static const int OUT[LAYERS] = {NODES, NODES, NODES, STATE}, IN[LAYERS] = {STATE, NODES, NODES, NODES};

typedef struct { float w[LAYERS][NODES][NODES], b[LAYERS][NODES]; } Weights;
typedef struct { lane w[LAYERS][NODES][NODES], b[LAYERS][NODES]; } Gradients;

/* tanh by its continued fraction, cut after five terms and clamped: exact to about 1e-6, which is enough to time. */
static inline lane tanh_lane(lane x) {
  for (int i = 0; i < LANES; i++) x[i] = x[i] > 4.97f ? 4.97f : x[i] < -4.97f ? -4.97f : x[i];
  lane s = x * x;
  return x * (((s + 378.f) * s + 17325.f) * s + 135135.f) / (((28.f * s + 3150.f) * s + 62370.f) * s + 135135.f);
}

/* z = W h + b for fixed sizes, unrolled by the compiler. */
#define FORWARD(l, out, in, h, z)                                    \
  for (int o = 0; o < out; o++) {                                    \
    lane sum = p->b[l][o] - (lane){0};                               \
    _Pragma("GCC unroll 10") for (int i = 0; i < in; i++) sum += p->w[l][o][i] * h[i]; \
    z[o] = sum;                                                      \
  }

/* Gradients of layer l from those of its outputs, dz; returns those of its inputs in dh. */
#define BACKWARD(l, out, in, h, dz, dh)                              \
  for (int o = 0; o < out; o++) g->b[l][o] += dz[o];                 \
  for (int i = 0; i < in; i++) {                                     \
    lane sum = {0};                                                  \
    _Pragma("GCC unroll 10") for (int o = 0; o < out; o++) {         \
      sum += p->w[l][o][i] * dz[o];                                  \
      g->w[l][o][i] += dz[o] * h[i];                                 \
    }                                                                \
    dh[i] = sum;                                                     \
  }

static void burst(const Weights *p, Gradients *g, const lane (*x)[STATE], lane *loss) {
  lane s[STEPS + 1][STATE], h[STEPS][LAYERS - 1][NODES];
  for (int i = 0; i < STATE; i++) s[0][i] = x[0][i];
  for (int k = 0; k < STEPS; k++) {
    lane z[NODES];
    FORWARD(0, NODES, STATE, s[k], z)
    for (int o = 0; o < NODES; o++) h[k][0][o] = tanh_lane(z[o]);
    FORWARD(1, NODES, NODES, h[k][0], z)
    for (int o = 0; o < NODES; o++) h[k][1][o] = tanh_lane(z[o]);
    FORWARD(2, NODES, NODES, h[k][1], z)
    for (int o = 0; o < NODES; o++) h[k][2][o] = tanh_lane(z[o]);
    FORWARD(3, STATE, NODES, h[k][2], z)
    for (int o = 0; o < STATE; o++) {
      s[k + 1][o] = s[k][o] + z[o];
      lane error = s[k + 1][o] - x[k + 1][o];
      *loss += error * error;
    }
  }
  lane ds[STATE] = {{0}};
  for (int k = STEPS - 1; k >= 0; k--) {
    lane dz[NODES], dh[NODES];
    for (int o = 0; o < STATE; o++) ds[o] += 2.f * (s[k + 1][o] - x[k + 1][o]);
    BACKWARD(3, STATE, NODES, h[k][2], ds, dh)
    for (int i = 0; i < NODES; i++) dz[i] = dh[i] * (1.f - h[k][2][i] * h[k][2][i]);
    BACKWARD(2, NODES, NODES, h[k][1], dz, dh)
    for (int i = 0; i < NODES; i++) dz[i] = dh[i] * (1.f - h[k][1][i] * h[k][1][i]);
    BACKWARD(1, NODES, NODES, h[k][0], dz, dh)
    for (int i = 0; i < NODES; i++) dz[i] = dh[i] * (1.f - h[k][0][i] * h[k][0][i]);
    BACKWARD(0, NODES, STATE, s[k], dz, dh)
    for (int i = 0; i < STATE; i++) ds[i] += dh[i];
  }
}

static int rising(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

int main(int argc, char **argv) {
  int samples = argc > 1 ? atoi(argv[1]) : 50000, repeats = argc > 2 ? atoi(argv[2]) : 9, blocks = samples / LANES;
  lane(*x)[STEPS + 1][STATE] = aligned_alloc(64, sizeof(*x) * blocks);
  for (long i = 0; i < (long)blocks * (STEPS + 1) * STATE * LANES; i++) ((float *)x)[i] = rand() / (float)RAND_MAX;
  Weights p;
  for (int l = 0; l < LAYERS; l++)
    for (int o = 0; o < OUT[l]; o++) {
      p.b[l][o] = 0;
      for (int i = 0; i < IN[l]; i++) p.w[l][o][i] = rand() / (float)RAND_MAX - .5f;
    }
  double *seconds = malloc(sizeof(double) * repeats), sum = 0;
  for (int r = 0; r < repeats; r++) {
    double start = omp_get_wtime();
    float total = 0;
#pragma omp parallel reduction(+ : total)
    {
      static _Thread_local Gradients g;
      lane loss = {0};
      int done = 0;
#pragma omp for schedule(static)
      for (int b = 0; b < blocks; b++) {
        if (done++ % 31 == 0) memset(&g, 0, sizeof g); /* about a batch of 1,000 on two cores */
        burst(&p, &g, (const lane(*)[STATE])x[b], &loss);
      }
      for (int i = 0; i < LANES; i++) /* the result must depend on every gradient, or the compiler drops it */
        for (int l = 0; l < LAYERS; l++)
          for (int o = 0; o < OUT[l]; o++) {
            total += g.b[l][o][i] * 1e-20f;
            for (int k = 0; k < IN[l]; k++) total += g.w[l][o][k][i] * 1e-20f;
          }
      for (int i = 0; i < LANES; i++) total += loss[i];
    }
    seconds[r] = omp_get_wtime() - start;
    sum += total;
  }
  qsort(seconds, repeats, sizeof(double), rising);
  printf("%.6f\n", seconds[repeats / 2]);
  return !(sum > 0); /* uses the results, so that none of the work is dropped */
}
